"""Does MCL help a video follow its actions, in any reading, weight or amount of data?"""
