"""What runs inside the sandbox: an interpreter that forks a session per response. Standard library only."""
