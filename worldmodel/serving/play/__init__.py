"""`worldmodel play`: a page to drive a world model, beside the simulator where there is one."""
