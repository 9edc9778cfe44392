"""The tests, and what they share: `tests.models`, `tests.fakes`, `tests.conformance`."""
