"""What came of the probes, for whoever reads it: one report, a saved one, two side by side."""
