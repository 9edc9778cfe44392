"""Makes proxy/endpoints/openapi.json of the Structs."""
