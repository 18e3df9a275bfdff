"""The observer: ticks, routes, end offsets and arrivals, appended to the control topics."""
