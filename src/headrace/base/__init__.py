"""What every other part may use: errors, source locations, durations, options, keys, event time."""
