"""The processes of a run with several learners: who starts them, what they tell each other."""
