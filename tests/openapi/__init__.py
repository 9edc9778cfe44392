"""Makes proxy/endpoints/openapi.json of the Structs: `make openapi`, at development time."""
