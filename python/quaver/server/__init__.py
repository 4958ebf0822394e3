"""`quaver serve`: an OpenAI-compatible HTTP server over the C++ engine. Start at app.py, then generation.py."""
