"""Templates, the style sheet and scripts that several pages share, and what fills them."""
