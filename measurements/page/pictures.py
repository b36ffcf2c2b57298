"""`python -m measurements.page.pictures`: the pictures of docs/ui.md, from a made fleet in a real browser."""

import time

from localcluster.paths import REPOSITORY
from tests.browser.driver import chromium
from tests.browser.fleet import MadeFleet, share_of, uuids

IMAGES = REPOSITORY / "docs/images"


def main() -> None:
    fleet = MadeFleet(6, seed=4)
    fleet.past(300)
    broken = uuids("gpu-1")[5]
    daemons = fleet.node("gpu-1")["status"]["daemons"]
    daemons[5] |= {"ready": False, "reason": "ServerFault", "message": "Xid 31: waits for 2 faulted clients to end"}
    fleet.view.put_node(fleet.node("gpu-1", daemons=daemons))
    shown = max(uuids("gpu-1"), key=lambda uuid: len(fleet.clients(uuid)) * (share_of(uuid) == "inference"))
    assert shown != broken
    with fleet.served() as address, chromium() as browser:
        browser.size(1240, 760)
        browser.dark(False)
        browser.open(address)
        browser.wait("return document.querySelectorAll('.row .client').length")
        time.sleep(0.5)  # until everything is painted
        browser.picture(IMAGES / "ui-gpus.png")
        browser.dark(True)
        browser.open(f"{address}#gpus/gpu/{shown}")
        browser.wait("return document.querySelector('#pane tbody .swatch')")
        time.sleep(0.5)
        browser.picture(IMAGES / "ui-details.png")


if __name__ == "__main__":
    main()
