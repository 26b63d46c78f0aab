"""HTTP itself: protocol, middleware, request bodies, error bodies, the OpenAPI schema."""
