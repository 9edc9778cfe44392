"""One file for each server: its request table, its fields and what its versions do."""
