"""What Headrace depends on: known vulnerabilities, licences, and a bill of materials."""
