"""From prompts to the feature cache: regenerate, capture, and checks of what they wrote."""
