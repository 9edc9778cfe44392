"""The whole proxy on loopback, beside others in front of the same upstream, against its targets."""
