"""The deployment report: facts of a fleet -> a typed document -> Markdown or one HTML page."""
