"""What answers at each path: decode, route, plan, relay."""
