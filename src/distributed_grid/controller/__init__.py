"""The one writer: a detached actor that owns the store, keeps the promises and answers over HTTP."""
