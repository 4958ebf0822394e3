"""`quaver serve`: an OpenAI-compatible HTTP server over the C++ engine. Start at app.py (routes), then generation.py."""
