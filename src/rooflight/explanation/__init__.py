"""Why a measurement is as it is: verdicts and advice, and the causes of gaps between an estimate and a measurement."""
