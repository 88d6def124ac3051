"""Requests for text: of the generate extension and of OpenAI's API. Doors: `generation`, `openai_requests`."""
