"""What programs begin with that tell where their work ran."""

PLACES = """
import ray

def here():
    context = ray.get_runtime_context()
    name = next(n["Labels"]["grid/name"] for n in ray.nodes() if n["NodeID"] == context.get_node_id())
    return name, context.get_placement_group_id()

@ray.remote
def where():
    return here()

@ray.remote
class Actor:
    def where(self):
        return here()

def connect(**more):
    ray.init(log_to_driver=False, logging_level="ERROR", **more)
    return {n["Labels"]["grid/name"]: n["NodeID"] for n in ray.nodes() if n["Alive"]}
"""
