"""What the launchers of all platforms share. It knows no platform."""
