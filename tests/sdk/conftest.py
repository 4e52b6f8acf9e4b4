from served_grid import fresh, served

__all__ = ["fresh", "served"]
