"""What every other part may use: errors, places in a text, durations, options, keys and event time."""
