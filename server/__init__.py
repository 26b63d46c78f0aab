"""The search service - FastAPI app and its page. Imports couce and couce.index only, never torch."""
