"""The page in a real browser: it is live, goes by keyboard, believes no text, and does not mind a thousand nodes."""

import time
from typing import Any

import pytest

from tests.browser.driver import Browser
from tests.browser.fleet import MadeFleet, pod_answer, share_of, uuids

FIRST = uuids("gpu-1")[0]
BUSY = "return document.querySelector('#pane h2')?.textContent"
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>&amp;'


def chosen(browser: Browser) -> Any:
    return browser.run("return document.querySelector('.row[aria-selected=true]')?.getAttribute('aria-label')")


def pending(name: str, message: str) -> dict[str, Any]:
    limits = {"gpushare.dev/inference": "1"}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {
        "metadata": {"name": name, "namespace": "speech", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


def event(number: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"e{number}", "namespace": "speech", "uid": f"e{number}"},
        "involvedObject": {"kind": "Pod", "namespace": "speech", "name": "app"}, "type": "Warning", "reason": reason,
        "message": message, "lastTimestamp": "2026-01-01T00:00:00Z", "reportingComponent": "gpushare-agent",
    }  # fmt: skip


def test_a_change_shows_without_a_reload(page: Browser, fleet: MadeFleet) -> None:
    page.run("window.same = 'page'")
    lost = {"uuid": FIRST, "share": share_of(FIRST), "ready": False, "reason": "ServerFault", "message": "Xid 31"}
    fleet.view.put_node(fleet.node("gpu-1", daemons=[lost]))
    page.wait("return document.querySelector('.row .bad')?.textContent === 'ServerFault'")
    assert page.run("return document.querySelector('#tab-trouble .count').textContent") == "1"
    fleet.view.put_node(fleet.node("gpu-1"))
    page.wait("return !document.querySelector('.row .bad')")
    assert page.run("return window.same") == "page"


def test_new_figures_show_without_a_reload(page: Browser, fleet: MadeFleet) -> None:
    busy = next(uuid for uuid in uuids("gpu-1") if fleet.clients(uuid))
    fleet.loads[busy] = 5.0
    row = f"{uuids('gpu-1').index(busy)}"
    fleet.scrape("gpu-1", time.time())
    page.wait(f"return document.querySelector('#row-{row}').lastChild.textContent === '100'")


def test_a_borrower_shows_in_the_bar_in_the_details_and_by_namespace(page: Browser, fleet: MadeFleet) -> None:
    uuid = next(uuid for uuid in uuids("gpu-1") if fleet.clients(uuid))
    namespace, name = fleet.clients(uuid)[0]
    assert not page.run("return document.querySelector('.bar .borrows')")
    fleet.borrowed[name] = 8
    going = {
        "uuid": uuid, "share": share_of(uuid), "namespace": namespace, "pod": name, "container": "main",
        "reservedMib": 16384, "limitMib": 40960, "observedMib": 24576, "since": "2026-01-01T00:00:00Z",
        "endsAt": "2026-01-01T00:01:00Z",
    }  # fmt: skip
    fleet.view.put_node(fleet.node("gpu-1", borrowers=[going]))
    fleet.scrape("gpu-1", time.time())
    page.wait("return document.querySelector('.bar .borrows')?.title.endsWith('24Gi of 16Gi, 8.0Gi of it borrowed')")
    page.click(f"#row-{uuids('gpu-1').index(uuid)}")
    page.wait("return document.querySelector('#pane h2')?.textContent.startsWith('GPU')")
    text = page.run("return document.querySelector('#pane').textContent")
    assert "8.0Gi borrowed, 20Gi free of 140Gi" in text
    assert f"{namespace}/{name} main: 16Gi reserved, at most 40Gi, ended at 2026-01-01T00:01:00Z" in text
    page.press("3")
    page.wait("return [...document.querySelectorAll('.row .warn')].some((one) => one.textContent === '8.0Gi')")


def test_a_pod_that_waits_shows_with_its_reason_and_goes(page: Browser, fleet: MadeFleet) -> None:
    fleet.view.put_pod(pending("train", "0/3 nodes: Insufficient gpushare.dev/inference"))
    fleet.view.judge()
    page.wait("return document.querySelector('#tab-waiting .count').textContent === '1'")
    page.press("4")
    text = page.wait("return document.querySelector('.row')?.textContent")
    assert "it waits for a slot of share inference" in text
    fleet.view.remove_pod(("speech", "train"))
    fleet.view.judge()
    page.wait("return !document.querySelector('.row') && !document.getElementById('empty').hidden")


def test_findings_and_faults_come_as_they_happen(page: Browser, fleet: MadeFleet) -> None:
    page.press("5")
    finding = {
        "uuid": FIRST, "share": share_of(FIRST), "reason": "MemoryAboveGrant", "namespace": "speech", "pod": "app",
        "granted": 1, "observed": 2, "message": "uses 2 of 1 MiB", "since": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    fleet.view.put_node(fleet.node("gpu-1", findings=[finding]))
    fleet.view.put_event(event(1, "ClientFaulted", "lost its contexts by Xid 31"))
    fleet.view.judge()
    page.wait("return document.querySelectorAll('.row').length === 2")
    texts = page.run("return [...document.querySelectorAll('.row')].map((row) => row.textContent)")
    assert "MemoryAboveGrantuses 2 of 1 MiB" in texts[0]
    assert "ClientFaultedlost its contexts by Xid 31" in texts[1]


def test_a_click_leads_from_share_to_gpu_to_pod_and_back(page: Browser, fleet: MadeFleet) -> None:
    uuid = next(uuid for uuid in uuids("gpu-1") if fleet.clients(uuid))
    namespace, name = fleet.clients(uuid)[0]
    fleet.pods[f"{namespace}/{name}"] = pod_answer(namespace, name, uuid, "gpu-1", "it runs", [event(1, "Note", "n")])
    page.click("#tab-shares")
    position = sorted({share_of(gpu) for node in fleet.names() for gpu in uuids(node)}).index(share_of(uuid))
    page.wait("return document.querySelector('.row')?.textContent.includes('DevicePlugin')")
    page.click(f"#row-{position}")
    page.wait(f"{BUSY} === 'Share {share_of(uuid)}'")
    page.click(f"#pane a[href='#shares/gpu/{uuid}']")
    page.wait(f"{BUSY} === 'GPU {uuids('gpu-1').index(uuid)} of gpu-1'")
    page.click(f"#pane a[href='#shares/pod/{namespace}%2F{name}']")
    page.wait(f"{BUSY} === 'Pod {namespace}/{name}' && document.querySelector('#pane').textContent.includes('it runs')")
    page.run("history.back()")
    page.wait(f"{BUSY} === 'GPU {uuids('gpu-1').index(uuid)} of gpu-1'")


def test_everything_goes_by_keyboard(page: Browser, fleet: MadeFleet) -> None:
    page.press("/", *"gpu-2", "Enter")
    page.wait("return document.querySelectorAll('.row').length === 8")
    assert chosen(page).startswith("GPU 0 of node gpu-2")
    page.press("ArrowDown", "ArrowDown")
    page.wait(
        "return document.querySelector('.row[aria-selected=true]').getAttribute('aria-label').startsWith('GPU 2')"
    )
    page.press("Enter")
    page.wait(f"{BUSY} === 'GPU 2 of gpu-2'")
    page.press("Tab", "Tab", "Enter")  # past the button that closes it: the first link, the GPU's share
    page.wait(f"{BUSY} === 'Share {share_of(uuids('gpu-2')[2])}'")
    page.press("Escape")
    page.wait("return document.getElementById('pane').hidden")
    assert page.run("return document.activeElement.id") == "list"
    page.press("End")
    page.wait(
        "return document.querySelector('.row[aria-selected=true]').getAttribute('aria-label').startsWith('GPU 7')"
    )
    described = page.run("return document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))")
    assert described is not None
    page.press("3")
    page.wait("return document.getElementById('tab-clients').getAttribute('aria-selected') === 'true'")


def test_what_a_tenant_writes_stays_text(page: Browser, fleet: MadeFleet) -> None:
    fleet.view.put_pod(pending(HOSTILE, HOSTILE))
    fleet.view.put_event(event(1, HOSTILE, HOSTILE))
    fleet.view.note(HOSTILE, HOSTILE)
    fleet.view.judge()
    page.wait("return document.querySelector('#notes').textContent")
    for key in "45":
        page.press(key)
        page.wait("return document.querySelector('.row')?.textContent.includes(arguments[0])", HOSTILE)
        page.press("ArrowDown", "Enter")
        page.wait("return document.querySelector('#pane').textContent.includes(arguments[0])" if key == "4" else
                  "return !document.querySelector('#pane').hidden", HOSTILE)  # fmt: skip
    assert page.run("return document.querySelectorAll('img, script:not([src]), .row script').length") == 0
    assert page.run("return document.title") == "gpushare: example"


CONTRAST = """
const shade = (text) => {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((one) => one / 255)
    .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
};
const probe = document.body.appendChild(document.createElement("span")), found = {};
const color = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
for (const ground of ["ground", "raised", "chosen"])
  for (const text of ["text", "faint", "accent", "good", "warn", "bad"]) {
  const [one, other] = [shade(color(ground)), shade(color(text))];
  found[`${text} on ${ground}`] = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}
probe.remove();
return found;
"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_is_readable_dark_and_light(page: Browser, dark: bool) -> None:
    page.dark(dark)
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
    assert {pair: ratio for pair, ratio in page.run(CONTRAST).items() if ratio < 4.5} == {}


def test_the_chosen_colours_stay(page: Browser) -> None:
    page.dark(False)
    page.click("#theme")
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    page.run("location.reload()")
    page.wait("return document.getElementById('theme').textContent === 'Colours: dark'")
    page.run("localStorage.clear()")


def test_when_the_program_ends_the_page_says_so(window: Browser, fleet: MadeFleet) -> None:
    with fleet.served() as address:
        window.open(address)
        window.wait("return document.getElementById('live').textContent === 'live'")
    window.wait("return document.getElementById('live').textContent.startsWith('not connected')")
    assert window.run("return document.querySelectorAll('.row').length") > 0
    window.open("about:blank")
    window.log()


def test_of_a_thousand_nodes_only_what_is_on_screen_is_drawn_and_asked_for(window: Browser) -> None:
    fleet = MadeFleet(1000)
    with fleet.served() as address:
        window.open(address)
        window.wait("return document.querySelector('#tab-gpus .count')?.textContent === '8000'")
        assert 10 < window.run("return document.querySelectorAll('.row').length") < 60
        window.run("document.getElementById('list').focus()")
        window.press("End")
        last = "return document.querySelector('.row[aria-selected=true]')?.getAttribute('aria-label')"
        window.wait(f"{last}?.startsWith('GPU 7 of node gpu-1000')")
        window.wait("return document.querySelectorAll('.row').length < 60")
        window.press("/", *"gpu-777")
        window.wait("return document.querySelectorAll('.row').length === 8")
        fleet.looked.clear()
        time.sleep(2.5)  # a turn of the page's own clock
        assert fleet.looked
        assert all(nodes == ["gpu-777"] for nodes in fleet.looked)
        window.open("about:blank")
