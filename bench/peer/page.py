from pathlib import Path
from peer.figures import Results
def write(results: Results, folder: Path) -> None: print(folder)
