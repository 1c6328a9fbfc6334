"""CSV as in RFC 4180."""
