"""How a run is started, held together and looked after, by the process that owns it."""
