"""The control room: the plugin's web pages. Read-only; nothing here changes a table or a stream."""
