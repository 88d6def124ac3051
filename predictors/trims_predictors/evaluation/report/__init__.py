"""Reports of evaluations: medians (`rows`) as text, CSV, JSON, pictures and one HTML file, and two compared."""
