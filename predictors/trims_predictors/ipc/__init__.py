"""Messages, shared buffers and output pipes between the endpoint and its children. Doors: `messages`, `connection`."""
