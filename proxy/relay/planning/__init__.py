"""What a backend is asked for one request: all at once, choice by choice, or as its like was."""
