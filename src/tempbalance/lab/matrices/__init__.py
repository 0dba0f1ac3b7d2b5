"""A small network whose Hessian, covariances and tangent kernel are measured while it is trained."""
