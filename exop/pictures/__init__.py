"""Pictures of meshes, and tables of figures: for the command line, notebooks and pages."""
