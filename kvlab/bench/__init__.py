"""What is measured, and the scripts that make the README's pictures. Nothing here is imported by the library."""
