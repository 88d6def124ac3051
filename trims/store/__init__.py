"""The imperative shell: carries out what residency decides, and feeds every outcome back as an event.

Doors: `store`, `assembly`.
"""
