"""What spoolax knows of JAX's insides: private names, what changed between versions, platforms.

Supported: JAX 0.10.0 to 0.12. When JAX moves something, the change belongs in this folder and
nowhere else. Of ours, it imports only the errors, and everything that traces may import it.
"""
