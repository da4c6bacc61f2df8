from django.http import HttpRequest, HttpResponse
from django.urls import path


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello\n", content_type="text/plain")


urlpatterns = [path("", hello)]
