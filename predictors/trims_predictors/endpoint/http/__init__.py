"""The Open Inference Protocol and the web page over HTTP. Door: `app`."""
