"""The endpoints of the REST API, a module per resource."""
