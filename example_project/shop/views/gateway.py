from django.contrib import messages
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from shop import gateway
from shop.gateway import GatewayError

#: What each mode means, for people.
MEANING = {
    "works": "It charges and answers.",
    "slow": "It charges at once, and answers after eight seconds.",
    "times out": "It charges, and its answer never comes.",
    "is down": "It charges nothing and answers 503.",
    "declines": "It charges nothing and says that the card was declined.",
}


@require_safe
def page(request):
    try:
        ledger = gateway.ledger(most=50)
    except GatewayError as error:
        return render(request, "shop/gateway.html", {"problem": str(error)}, status=503)
    modes = [(mode, MEANING.get(mode, "")) for mode in ledger["modes"]]
    return render(request, "shop/gateway.html", {"ledger": ledger, "modes": modes})


@require_POST
def switch(request):
    mode = request.POST.get("mode", "")
    try:
        gateway.switch(mode)
    except GatewayError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"From now on the gateway {mode}." if mode != "slow" else "The gateway is slow now.")
    return redirect("gateway")
