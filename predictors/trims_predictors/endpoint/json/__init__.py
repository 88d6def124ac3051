"""JSON of requests and responses, large ones in processes of their own. Doors: `requests`, `workers`."""
