"""What is decided about quotas on both sides: amounts, accounts, grants, surge. No I/O."""
