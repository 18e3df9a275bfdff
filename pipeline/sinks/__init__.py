"""Where rows and decisions go."""
