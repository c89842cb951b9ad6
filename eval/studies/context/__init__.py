"""Do interventions that were learned one by one compose?"""
