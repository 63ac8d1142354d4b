"""What controllers are made of: reflector, work queue, leader election, Events."""
