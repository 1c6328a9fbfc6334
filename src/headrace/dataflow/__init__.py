"""YAML → plan: dataflows of lightweight operators that share a runtime."""
